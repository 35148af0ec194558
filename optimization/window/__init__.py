"""The horizon program: problem statement, Pyomo model, solver, exact twin and audit (M3)."""
