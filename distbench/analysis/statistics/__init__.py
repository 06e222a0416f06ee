"""Statistical methods that know nothing of cases and trainings."""
