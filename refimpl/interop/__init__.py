"""Use the losses of this package inside other training engines: TRL and verl.

`requirements.txt` installs neither of them, because both are large and change quickly.
The modules `trl` and `verl` name the version that they were tested with and refuse
others. `configs` writes verl's configuration for a method, and `conformance` tests
other implementations of the losses. If an engine cannot run a method, only this method
raises an error.
"""
