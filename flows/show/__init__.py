"""How values are shown: tables, pages, drawings, number formats."""
