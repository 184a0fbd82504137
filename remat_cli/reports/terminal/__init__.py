"""Terminal reports: functions that return rich renderables.

They print nothing.
"""
