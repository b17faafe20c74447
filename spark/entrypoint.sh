#!/bin/sh
# job: runs the mounted StreamJob, with its driver in this container. driver, executor: the commands of Spark on Kubernetes
# (the driver by spark-submit in cluster mode, as for a SparkApplication). Any other command is run unchanged.
set -e
case "$1" in
job)
  shift
  exec tini -s -- python -m headrace_spark.job "$@"
  ;;
driver)
  shift
  exec tini -s -- "$SPARK_HOME/bin/spark-submit" --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" \
    --conf "spark.executorEnv.SPARK_DRIVER_POD_IP=$SPARK_DRIVER_BIND_ADDRESS" --deploy-mode client "$@"
  ;;
executor)
  set --
  index=0
  while eval "[ -n \"\${SPARK_JAVA_OPT_$index+set}\" ]"; do
    eval "set -- \"\$@\" \"\$SPARK_JAVA_OPT_$index\""
    index=$((index + 1))
  done
  exec tini -s -- java "$@" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" -cp "$SPARK_HOME/jars/*" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
  ;;
*)
  exec "$@"
  ;;
esac
