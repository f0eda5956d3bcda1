"""The losses of this package inside training engines that others keep: TRL and verl.

Neither is installed by `requirements.txt`: they are heavy and move fast. `trl` and
`verl` name the versions that they were tested with, and refuse others. `configs` makes
verl's configuration for a method, `conformance` asks other implementations the losses'
cases. A method that an engine cannot have is refused in a sentence, the others stay.
"""
