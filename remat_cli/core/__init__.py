"""The domain: graphs, schedules, problems, the judge, and bounds for every planner."""
