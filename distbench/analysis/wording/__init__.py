"""Results of a run as sentences: recommendation, findings, conditions."""
