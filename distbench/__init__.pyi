from distbench.api.run import RunResults as _RunResults
from distbench.api.run import load as load
from distbench.api.scripts import measure as measure
from distbench.api.suite_run import run as run
from distbench.api.traces import trace as trace
from distbench.core.errors import DistbenchError as DistbenchError
from distbench.core.errors import InfrastructureError as InfrastructureError
from distbench.core.errors import RecordError as RecordError
from distbench.core.errors import SuiteError as SuiteError
from distbench.core.errors import UsageError as UsageError
from distbench.worker.scripts.activation import attach as attach
from distbench.worker.scripts.activation import step as step

Run = _RunResults
__version__: str
