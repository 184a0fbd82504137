"""The domain: graphs, schedules, problems, the judge, and what holds for every planner."""
