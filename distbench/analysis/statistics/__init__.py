"""Statistical methods, independent of cases and trainings."""
