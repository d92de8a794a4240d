"""`pmsfl bench`: how fast a step and a round are, against an honest loop over clients and against the hardware."""
