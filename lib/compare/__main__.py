"""`python -m lib.compare`."""

import sys
import time

import psutil

from lib.compare import main

# Loading the libraries took a while already, and every notebook will do it again
sys.exit(main(began=time.perf_counter() - (time.time() - psutil.Process().create_time())))
