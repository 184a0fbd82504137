"""The optimal persistent schedules of a chain (Beaumont et al., rotor)."""
