"""Interface of the frameworks that take the steps of a strategy.

A framework is a frozen dataclass; its fields are its options in YAML. It gets the case's own model, optimizer
and micro-batches, so that it does the same work as distbench's own steps. Heavy imports are inside ``build``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from distbench.core import registry
from distbench.core.case import Case
from distbench.strategies.base import RankContext, Strategy
from distbench.strategies.description import ExpectedCollective, SettingMeaning
from distbench.strategies.engine import Engine

FRAMEWORK = "framework"
"""Effective setting of a trial: the framework's distributions with their versions."""
FRAMEWORK_SETTINGS = {FRAMEWORK: SettingMeaning("speed", "the framework that takes the steps")}


class Framework(ABC):
    """A framework that wraps the model of a strategy, and takes its steps."""

    packages: ClassVar[tuple[str, ...]] = ()
    """Distributions that must be installed."""
    built_packages: ClassVar[tuple[str, ...]] = ()
    """Distributions that ``prepare`` builds, unless they are installed."""
    prepare_s: ClassVar[float] = 0.0
    """Seconds that ``prepare`` may take on a slow machine."""
    communicates_by_torch: ClassVar[bool] = True
    """False if its collectives don't pass torch.distributed, where they are counted and timed."""
    extra: ClassVar[str] = ""
    """Extra of distbench that installs them; empty: there is none."""
    strategies: ClassVar[tuple[str, ...]] = ()
    """Names of the strategies whose steps it can take, at least with some of their options."""
    imports: ClassVar[tuple[str, ...]] = ()
    """Modules that the fork server of the ranks imports; they must not touch CUDA."""

    @abstractmethod
    def problem(self, case: Case, strategy: Strategy) -> str | None:
        """Reason why this framework can't train *case* with *strategy*; None if it can."""

    def engine_class(self, strategy: Strategy) -> str:
        """Class that ``Engine.framework_engine`` must be an instance of, so that no other engine runs."""
        return strategy.engine_class

    def additional_traffic(self, case: Case, strategy: Strategy) -> Sequence[ExpectedCollective]:
        """Collectives that it should issue in a step besides those of *strategy*."""
        return ()

    def minimum_releases(self, strategy: Strategy) -> Mapping[str, str]:
        """First release of each package with which it can take the steps of *strategy*; none: any will do."""
        return {}

    @classmethod
    def is_built(cls) -> bool:
        """True if ``prepare`` builds something."""
        return cls.prepare is not Framework.prepare

    def prepare(self, case: Case) -> list[str]:
        """Build once, in a process of its own, what the ranks import; return messages for users."""
        return []

    @abstractmethod
    def build(self, strategy: Strategy, context: RankContext) -> Engine:
        """Engine of this rank, whose steps the framework takes. Runs in the worker.

        Raises:
            UnsupportedCase: a condition that only a rank can check rules it out.
            Mismatch: the framework set up something else than what was requested.
        """


PLUGIN_BASE = Framework


def engine_of(case: Case) -> Framework:
    """Framework that takes the steps of *case*."""
    framework: Framework = registry.create_plugin("engines", case.engine)
    return framework
