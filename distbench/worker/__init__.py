"""The part of distbench that imports torch: the fork server of the ranks, and one rank of one trial."""
