"""The report of `remat check`, in each form that somebody reads."""
