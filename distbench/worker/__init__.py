"""The part of distbench that imports torch: the warm parent of the ranks, and one rank of one trial."""
