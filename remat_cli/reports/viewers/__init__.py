"""Schedules in the formats of other viewers.

These are Perfetto, PyTorch's memory viewer, Model Explorer and Netron.
"""

from __future__ import annotations

from remat_cli.reports.viewers.form import Form, form_of

__all__ = ["Form", "form_of"]
