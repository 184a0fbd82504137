"""onnxruntime: rewritten models, executed and measured.

A session that runs a rewritten model follows the schedule.

`rewrite` writes the model, `external_data` its references to weights, `session` the options of the session. `execution`
runs the model and its original in child processes (`measured_process`). `memory_divergence` finds the first op whose
measured memory differs from the prediction.
"""
