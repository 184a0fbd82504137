"""Methods of papers that `auto` does not ask, to be compared with."""
