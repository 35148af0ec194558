"""The horizon program: statement, Pyomo model, solver, exact twin, audit (M3)."""
