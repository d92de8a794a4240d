"""`pmsfl paper`: the tables and figures of the PM-SFL paper, and of our own controls, as lists of recipes.

rows.py says which federations there are and what each scale makes of them; one file per table (table1.py,
ratio.py, …) says which methods meet which rows and how the outcome is written. tables.py lists the tables: a new
one is one file and one line there.
"""
