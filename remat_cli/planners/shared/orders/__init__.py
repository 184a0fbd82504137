"""Orders of first runs that need little memory."""
