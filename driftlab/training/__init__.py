"""The compact trainer: tasks, sampler, objectives, teachers and stages, ending in a run folder.

Read the files in this order: :mod:`~driftlab.training.tasks` (what is asked and how it is marked),
:mod:`~driftlab.training.rollout` (how answers are sampled), :mod:`~driftlab.training.objectives` (what is
minimised), :mod:`~driftlab.training.teachers` (who is imitated), :mod:`~driftlab.training.trainer` (the loop),
:mod:`~driftlab.training.runfolder` (what is left on disk).
"""
