{{/* Labels of every object. The component is the operator unless an object replaces it. */}}
{{- define "roundhouse.labels" -}}
{{ include "roundhouse.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Labels that select the operator's pods. A Deployment's selector is immutable, so these never change. */}}
{{- define "roundhouse.selector" -}}
app.kubernetes.io/name: roundhouse
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "roundhouse.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "roundhouse.trainerImage" -}}
{{ .Values.trainer.image | default (printf "ghcr.io/roundhouse/roundhouse-trainer:%s" .Chart.AppVersion) }}
{{- end }}

{{- define "roundhouse.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default .Release.Name }}
{{- else -}}
{{ required "serviceAccount.name is needed when serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end -}}
{{- end }}

{{/* "true" or empty. Nodes are cluster-scoped, so a Role gives no rights on them. */}}
{{- define "roundhouse.watchNodes" -}}
{{- if and .Values.nodes.watch (not .Values.watchNamespace) }}true{{ end }}
{{- end }}

{{/* "true" if the policy selects namespaces by their labels, otherwise empty. */}}
{{- define "roundhouse.readNamespaces" -}}
{{- with .Values.policy.namespaces }}
{{- if $.Values.watchNamespace }}{{ fail "policy.namespaces needs the labels of namespaces, which a release with watchNamespace cannot read: set policy.allow instead" }}{{ end -}}
true
{{- end }}
{{- end }}

{{/* The pod security context of the values, without users and groups if the platform chooses them. */}}
{{- define "roundhouse.podSecurityContext" -}}
{{- $context := .Values.podSecurityContext }}
{{- if not .Values.fixedUsers }}
{{- $context = omit $context "runAsUser" "runAsGroup" "fsGroup" }}
{{- end }}
{{- toYaml $context }}
{{- end }}

{{/* The kind of the operator's role: Role with watchNamespace, otherwise ClusterRole. */}}
{{- define "roundhouse.roleKind" -}}
{{ ternary "ClusterRole" "Role" (empty .Values.watchNamespace) }}
{{- end }}

{{/* Name of the objects of `helm test`. The name of a TrainingJob starts with a letter, and has no dots and at most 44 characters. */}}
{{- define "roundhouse.testName" -}}
test-{{ .Release.Name | replace "." "-" | trunc 39 | trimSuffix "-" }}
{{- end }}

{{- define "roundhouse.testLabels" -}}
{{ mergeOverwrite (include "roundhouse.labels" . | fromYaml) (dict "app.kubernetes.io/component" "test") | toYaml }}
{{- end }}

{{/* Annotations of an object of `helm test`; the argument is its weight. The pod of a failed test remains, because its log shows why
     the job waited. The next test deletes it first. */}}
{{- define "roundhouse.testHook" -}}
helm.sh/hook: test
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}
