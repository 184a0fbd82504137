"""Pipelines: one step's graph on several ranks, microbatches in flight, within a budget for each rank."""

from remat_cli.pipelines.chunks import Chunk, JobKind, StageCuts, cut_graph
from remat_cli.pipelines.jobs import Pipeline, RankJob
from remat_cli.pipelines.judge import Replay, replay_pipeline
from remat_cli.pipelines.planner import PipelinePlanning, plan_pipeline
from remat_cli.pipelines.request import PipelineRequest

__all__ = [
    "Chunk",
    "JobKind",
    "Pipeline",
    "PipelinePlanning",
    "PipelineRequest",
    "RankJob",
    "Replay",
    "StageCuts",
    "cut_graph",
    "plan_pipeline",
    "replay_pipeline",
]
