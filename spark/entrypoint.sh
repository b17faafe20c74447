#!/bin/sh
# `driver`: the job that is mounted; `executor`: as Spark on Kubernetes asks for it; anything else is run as it is.
set -e
case "$1" in
driver)
  shift
  exec tini -s -- python -m headrace_spark.job "$@"
  ;;
executor)
  set --
  index=0
  while true; do
    eval "option=\${SPARK_JAVA_OPT_$index:-}"
    [ -n "$option" ] || break
    set -- "$@" "$option"
    index=$((index + 1))
  done
  exec tini -s -- java "$@" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" -cp "/opt/spark/jars/*" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
  ;;
*)
  exec "$@"
  ;;
esac
