"""What tests share; pytest shows the values in assertions that fail here, too."""

import pkgutil

import pytest

pytest.register_assert_rewrite(*(f"support.{each.name}" for each in pkgutil.iter_modules(__path__)))
