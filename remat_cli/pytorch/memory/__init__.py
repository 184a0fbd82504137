"""The memory of a step that runs: each kernel's measured alone, whole steps followed, copies to the host and back."""
