"""What runs a plan: the model rewritten so that onnxruntime follows the schedule, executed and measured.

`rewrite` makes the model, `external` its references to weights, `session` the options of a session that follows it;
`execution` runs it in a child process (`child`) beside the model as it is, and `parting` finds where its memory departs
from what was predicted.
"""
