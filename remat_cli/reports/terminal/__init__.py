"""Reports on a terminal: functions that return rich renderables and print nothing."""
