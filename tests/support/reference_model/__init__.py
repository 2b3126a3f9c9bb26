"""A second, independent member of what a group's log allows, and the checks made with it.

`ReferenceModel` derives from facts and decisions alone who may run what; `Validator` judges a
machine's steps by it; `StepChecker` adds sizes, timers and restoring. The state machine never
imports this package.
"""
