{{- define "headrace.name" -}}
{{- if contains .Chart.Name .Release.Name -}}{{ .Release.Name | trunc 50 }}{{- else -}}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 }}{{- end -}}
{{- end -}}
{{- define "headrace.labels" -}}
app.kubernetes.io/name: headrace-operator
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}
{{- define "headrace.selector" -}}
app.kubernetes.io/name: headrace-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}
{{- define "headrace.image" -}}
{{ .image.repository }}:{{ .image.tag | default .context.Chart.AppVersion }}
{{- end -}}
{{/* Whether it looks after all namespaces; "": after some alone. */}}
{{- define "headrace.everywhere" -}}
{{- if has "*" .Values.namespaces }}true{{ end -}}
{{- end -}}
{{/* Those that it looks after, with commas; "": all. */}}
{{- define "headrace.namespaces" -}}
{{- if not (include "headrace.everywhere" .) -}}{{ join "," (.Values.namespaces | default (list .Release.Namespace)) }}{{- end -}}
{{- end -}}
{{/* The namespaces whose pods Prometheus is to scrape, as a PodMonitor names them. */}}
{{- define "headrace.monitored" -}}
{{- with include "headrace.namespaces" . -}}
matchNames: {{- splitList "," . | toYaml | nindent 2 }}
{{- else -}}
any: true
{{- end -}}
{{- end -}}
{{/* What the operator does in a namespace. It grants nodes and jobs rights, and so holds them itself. */}}
{{- define "headrace.rules" -}}
- apiGroups: [headrace.dev]
  resources: [streamclusters, volumes, streams, topics, streamusers, replicationlinks, streamjobs]
  verbs: [get, list, watch, patch]
- apiGroups: [headrace.dev]
  resources: [streamclusters/status, volumes/status, streams/status, topics/status, streamusers/status, replicationlinks/status, streamjobs/status]
  verbs: [patch]
- apiGroups: [headrace.dev]
  resources: [storagenodes, storagecontainers]
  verbs: [get, list, watch, create, update, delete]
- apiGroups: [headrace.dev]
  resources: [storagenodes]
  verbs: [patch]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get, list, watch, create, update, delete]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch, create, update, patch, delete]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [serviceaccounts]
  verbs: [get, create, patch]
# `create`, `patch` and `deletecollection` are what drivers with executors are granted.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, patch, delete, deletecollection]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, list, create, patch, delete]
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create, patch, delete]
- apiGroups: [""]
  resources: [events]
  verbs: [create, list]
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [list, watch]
- apiGroups: [batch]
  resources: [jobs, cronjobs]
  verbs: [get, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, create, patch, delete]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, create, patch]
- apiGroups: [sparkoperator.k8s.io]
  resources: [sparkapplications]
  verbs: [get, create, patch, delete]
{{- end -}}

{{- define "headrace.podSecurity" -}}
# No user: the image's own (10001) it is, or the one that the namespace gives (OpenShift).
runAsNonRoot: true
seccompProfile: {type: RuntimeDefault}
{{- end -}}
{{- define "headrace.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}
