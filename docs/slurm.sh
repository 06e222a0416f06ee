#!/bin/bash
#SBATCH --nodes=2 --exclusive
#SBATCH --no-requeue --signal=B:USR1@120
# exec: the signal, two minutes before the time limit, goes to distbench and not to the shell
exec distbench run "${1:-suites/quickstart.yaml}"
