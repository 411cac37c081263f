import sys

from plait.agent.main import main

sys.exit(main())
