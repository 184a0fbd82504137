"""onnxruntime: the model rewritten so that a session follows the schedule, executed and measured.

`rewrite` makes the model, `external_data` its references to weights, `session` the options of a session that follows
it; `execution` runs it in a child process (`measured_process`) beside the model as it is, and `memory_divergence` finds
where its memory departs from what was predicted.
"""
