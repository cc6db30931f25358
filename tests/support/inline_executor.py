"""An executor of sweeps that starts no process, where a process is not the point."""

import pickle

from pbprompt.executors import Ended, attempt


class Inline:
    """An executor that does its jobs here, through pickle as all do."""

    def __init__(self):
        self.jobs = []

    def submit(self, jobs):
        self.jobs += jobs

    def wait(self, timeout):
        job = self.jobs.pop(0)
        function, arguments = pickle.loads(pickle.dumps((job.function, job.arguments)))
        return [Ended(job, *attempt(function, arguments))]

    def running(self):
        return 0

    def close(self):
        pass
