"""The parts of a run as Ray actors: collectors, replay shards, learner, evaluator, predictor."""
