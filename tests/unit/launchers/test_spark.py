"""Spark: what is started. On a real one: tox -e cluster."""

import json

from distbench.core import registry
from distbench.core.case import PluginChoice
from distbench.launchers.nodes import Node
from support.runs import QUICK


def test_a_process_of_its_own_asks_spark_for_a_task_on_each_node():
    options = {"master": "spark://a:7077", "nnodes": 2, "slots": 8, "conf": {"spark.task.cpus": "8"}}
    launcher = registry.create_plugin("launchers", PluginChoice("spark", options))
    assert launcher.node_list() == [Node("", 8, 8), Node("", 8, 8)]
    (command,) = launcher.agent_commands(launcher.node_list())
    assert command[1:4] == ["-P", "-m", "distbench.launchers.spark.driver"]
    said = {"master": "spark://a:7077", "tasks": 2, "conf": {"spark.task.cpus": "8"}}
    assert json.loads(command[4]) == said


def test_a_stage_that_spark_would_try_again_is_refused(tmp_path, monkeypatch, distbench):
    # stands for the one that may be installed, or not
    (tmp_path / "pyspark.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    suite = tmp_path / "suite.yaml"
    conf = "{conf: {spark.task.maxFailures: '4'}}"
    suite.write_text(f"{QUICK}strategies: [pretended]\nlauncher: {{spark: {conf}}}\n")
    done = distbench("plan", str(suite))
    told = "launcher.spark.conf = {spark.task.maxFailures: '4'}: spark.task.maxFailures must be 1"
    assert (done.returncode, told in done.stderr) == (2, True), done.stderr
