"""A service of KServe's SDK whose model succeeds or fails, as --answer says. Runs in the clients'
environment."""

import argparse

import kserve
from fastapi import HTTPException


class Step(kserve.Model):
    def __init__(self, name, answer):
        super().__init__(name)
        self.answer = answer
        self.ready = True

    async def predict(self, payload, headers=None, response_headers=None):
        if self.answer == "success":
            return {"predictions": [{"message": "SUCCESS"}]}
        raise HTTPException(404, detail="Intentional 404 code")


parser = argparse.ArgumentParser(parents=[kserve.model_server.parser])
parser.add_argument("--answer", choices=["success", "error"])
args, _ = parser.parse_known_args()
kserve.ModelServer().start([Step(args.model_name, args.answer)])
