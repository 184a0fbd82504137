"""What runs a plan, and measures it: one folder a runtime."""
