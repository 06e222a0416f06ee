"""Values and rules that every other package uses: cases, jobs, errors, plug-ins, units. Without torch."""
