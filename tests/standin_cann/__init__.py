"""A stand-in for the CANN runtime, for tests of everything that talks to an NPU on machines without one."""
