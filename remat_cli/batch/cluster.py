"""Jobs on a Dask cluster.

A job's files travel with the job. On a worker each job gets a process of its own, as on this machine.
"""

from __future__ import annotations

import logging
import pickle
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from os.path import isfile  # unlike those of Path, false for a name that no file can have
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any
from uuid import uuid4

from remat_cli import __version__
from remat_cli.batch.job import Job, JobLimits, JobOutcome, failure, refusal
from remat_cli.batch.processes import ProcessExecutor
from remat_cli.batch.result_lines import Ending
from remat_cli.batch.run_job import check_unchanged
from remat_cli.errors import ClusterLost, RematError, UsageError
from remat_cli.formats import portable_bytes
from remat_cli.formats.source import read_bytes
from remat_cli.settings import Setting

# Seconds between two looks at cancelled tasks, the number of workers, and ended jobs.
_LOOK = 0.5
_TO_CONNECT = 10.0
_TO_FETCH = 30.0
# Jobs that wait on the cluster for each of its threads, so that none is idle while the next one is sent.
_QUEUED = 2


@dataclass(frozen=True)
class Parcel:
    """A job with the content of its files.

    Attributes:
        job: the job; its paths are names in `files`.
        files: content of the files, by name.
        origin: the graph's path as the user gave it, for messages.
    """

    job: Job
    files: Mapping[str, bytes]
    origin: str


def pack(job: Job) -> Parcel:
    """Return a job with its files.

    Raises:
        RematError: a file cannot be read, or has changed since the job was made.
    """
    check_unchanged(job)
    moved: dict[str, Any] = {}
    # A folder for each, as their names may be the same; a graph may be named after its file.
    graph = Path("graph", job.graph.name)
    files = {str(graph): portable_bytes(job.graph)}
    for key in ("device", "measurements"):
        name = getattr(job.options, key)
        if name is not None and isfile(path := Path(name)):
            inside = str(Path(key, path.name))
            files[inside] = read_bytes(path, error=UsageError)
            moved[key] = inside
    return Parcel(replace(job, graph=graph, sha256="", options=replace(job.options, **moved)), files, str(job.graph))


def unpack(parcel: Parcel, folder: Path) -> Job:
    """Write a job's files into an empty folder; return the job with these paths."""
    for name, content in parcel.files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    options = parcel.job.options
    moved: dict[str, Any] = {
        key: str(folder / name)
        for key in ("device", "measurements")
        if (name := getattr(options, key)) is not None and name in parcel.files
    }
    return replace(parcel.job, graph=folder / parcel.job.graph, options=replace(options, **moved))


def run_packed(packed: bytes, version: str) -> JobOutcome:
    """Carry out a job on a worker.

    Args:
        packed: the pickled parcel and limits.
        version: version of remat that sent the job.

    Raises:
        OtherVersion: this worker has another version.
    """
    if version != __version__:
        raise OtherVersion(__version__)
    return run_parcel(*pickle.loads(packed))


def run_parcel(parcel: Parcel, limits: JobLimits) -> JobOutcome:
    """Carry out a job on a worker.

    The job ends early if its outcome can no longer be delivered.
    """
    with TemporaryDirectory(prefix="remat-") as name:
        job = unpack(parcel, Path(name))
        processes = ProcessExecutor(1, limits)
        try:
            processes.submit(job)
            while _is_wanted():
                for _, outcome in processes.finished(_LOOK):
                    return _as_at_home(outcome, str(job.graph), parcel.origin)
        finally:
            processes.close()
    return failure(Ending.CRASHED, "the worker left")


def _as_at_home(outcome: JobOutcome, here: str, origin: str) -> JobOutcome:
    """Replace the worker's name for the graph by the user's in an outcome."""
    ended = outcome.ended
    if ended.error is None:
        return outcome
    return replace(outcome, ended=replace(ended, error=ended.error.replace(here, origin)))


def _is_wanted() -> bool:
    """Return whether the cluster still wants this thread's task.

    A cancelled task is not wanted, nor one whose worker has lost its scheduler.
    """
    worker = _distributed().get_worker()
    if worker.status.name in ("closing", "closed", "failed"):
        return False
    task = worker.state.tasks.get(worker.get_current_task())
    return task is not None and task.state != "cancelled"


class OtherVersion(Exception):
    """A worker has another version of remat than the sender of a job."""


# The question to a worker travels as text, which a worker without remat can answer. It could not unpickle a function of
# ours, and would leave the cluster.
_RUN = "__import__('remat_cli.batch.cluster', fromlist=['run_packed']).run_packed(packed, version)"
_VERSION = "__import__('remat_cli').__version__"


class Cluster:
    """Executes jobs on the workers of a Dask cluster.

    If a worker dies, the scheduler gives its job to another worker. The scheduler gives a job up after several dead
    workers (its setting `allowed-failures`). A late worker with another version of remat runs nothing: its jobs go to
    the others.

    Args:
        address: address of the scheduler, such as tcp://host:8786.
        limits: limits of each job.

    Raises:
        UsageError: Dask is missing here, there is no scheduler, or a worker does not have this version of remat.
    """

    def __init__(self, address: str, limits: JobLimits) -> None:
        self._address = address
        self._limits = limits
        self._client = _connected(address)
        self._running: dict[str, tuple[Job, Any]] = {}
        self._ended: SimpleQueue[str] = SimpleQueue()
        self._refused: list[tuple[Job, JobOutcome]] = []
        self._sent = 0
        # Workers that cannot run jobs, and why.
        self._unfit: dict[str, str] = {}
        # Other clients may have sent the same job, with other limits.
        self._run = uuid4().hex[:12]
        self._threads = 0
        self._counted = 0.0
        try:
            self._check_workers()
        except BaseException:
            self._client.close()
            raise

    @property
    def has_room(self) -> bool:
        """Whether the cluster has few enough jobs to take one more.

        Enough are two jobs for each thread: some run, some wait.
        """
        return len(self._running) < max(1, self._count_threads()) * _QUEUED

    @property
    def trouble(self) -> str:
        """Why jobs do not run; empty without trouble.

        There are no workers yet, or some workers cannot run jobs.
        """
        if not self._count_threads():
            return "the cluster has no workers"
        return "".join(f"left out: {reason}" for reason in list(self._unfit.values())[:1])

    def _count_threads(self) -> int:
        if monotonic() - self._counted > _LOOK:
            self._check_connection()
            try:
                self._threads, self._counted = sum(self._client.nthreads().values()), monotonic()
            except OSError:
                raise self._lost() from None
        return self._threads

    def submit(self, job: Job) -> None:
        """Send a job with its files to the scheduler."""
        try:
            parcel = pack(job)
        except RematError as error:
            self._refused.append((job, refusal(error)))
            return
        fit = self._fit_workers() if self._unfit else None
        if fit == []:
            self._refused.append((job, refusal(self._no_fit_worker())))
            return
        self._sent += 1
        names = {"packed": pickle.dumps((parcel, self._limits)), "version": __version__}
        with warnings.catch_warnings():
            # Dask warns of large messages; a graph of many ops has some megabytes, and has to be sent.
            warnings.simplefilter("ignore")
            key = f"remat-{job.key}-{self._run}-{self._sent}"
            future = self._client.submit(eval, _RUN, names, key=key, pure=False, workers=fit)
        self._running[future.key] = (job, future)
        future.add_done_callback(lambda done: self._ended.put(done.key))

    def finished(self, seconds: float) -> list[tuple[Job, JobOutcome]]:
        """Wait for a job to end, and return ended jobs.

        After about `seconds` without any, the list is empty.
        """
        if self._refused:
            refused, self._refused = self._refused, []
            return refused
        try:
            key = self._ended.get(timeout=seconds)
        except Empty:
            self._check_connection()
            return []
        job, future = self._running[key]
        try:
            outcome = self._outcome(future)
        except TimeoutError:
            self._ended.put(key)
            return []
        del self._running[key]
        if outcome is None:
            self.submit(job)
            return []
        return [(job, outcome)]

    def close(self) -> None:
        """Give up running jobs, and leave the cluster.

        The workers end the processes of these jobs.
        """
        self._client.cancel([future for _, future in self._running.values()])
        self._client.close()

    def _outcome(self, future: Any) -> JobOutcome | None:
        """Return a job's outcome; None if its worker cannot run jobs.

        Another worker has to run the job then.

        Raises:
            TimeoutError: the outcome was lost with a worker, and the job runs again.
        """
        self._check_connection()
        if future.cancelled():
            return failure(Ending.CRASHED, "the scheduler gave the job up")
        error = future.exception(timeout=_TO_FETCH)
        if isinstance(error, OtherVersion | ImportError | AttributeError):
            self._fit_workers()
            if self._unfit:
                return None
        if error is not None:
            return failure(Ending.CRASHED, f"the cluster could not run the job: {type(error).__name__}: {error}")
        outcome = future.result(timeout=_TO_FETCH)
        assert isinstance(outcome, JobOutcome)
        return outcome

    def _check_workers(self) -> None:
        """Compare the workers' version of remat with this process's.

        Workers that join later are checked when they get a job.
        """
        self._fit_workers()
        if self._unfit:
            raise self._no_fit_worker()

    def _fit_workers(self) -> list[str]:
        """Return workers that can run jobs, and note the others.

        A worker can run jobs if its version of remat is this process's.
        """
        try:
            versions: Mapping[str, object] = self._client.run(eval, _VERSION, on_error="return")
        except OSError:
            raise self._lost() from None
        self._unfit = {
            worker: f"worker {worker} {f'has remat {version}' if isinstance(version, str) else 'does not have remat'}"
            for worker, version in versions.items()
            if version != __version__
        }
        return [worker for worker in versions if worker not in self._unfit]

    def _no_fit_worker(self) -> UsageError:
        reason = next(iter(self._unfit.values()), "a worker has left")
        return UsageError(
            f"{reason}, and this is {__version__}", hint=f"on every worker: pip install 'remat[cluster]=={__version__}'"
        )

    def _check_connection(self) -> None:
        if self._client.status != "running":
            raise self._lost()

    def _lost(self) -> ClusterLost:
        hint = ("finished jobs are in the results; start the scheduler again, and go on with ", Setting("resume"))
        return ClusterLost(f"the scheduler at {self._address} has gone", hint=hint)


def _distributed() -> Any:
    """Return Dask's library; only a part of it has types."""
    try:
        import distributed
    except ImportError:
        raise UsageError(
            (Setting("scheduler"), " needs Dask, which is not there"), hint="pip install 'remat[cluster]'"
        ) from None
    return distributed


def _connected(address: str) -> Any:
    # These loggers print a traceback for a lost connection; here the fault becomes a message.
    library = _distributed()
    for name in ("distributed", "distributed.client", "tornado", "tornado.application"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        return library.Client(address, timeout=_TO_CONNECT, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise UsageError(
            f"there is no scheduler at {address}: {error}", hint="start one with 'dask scheduler', or check the address"
        ) from None
