{{/* Labels of every object. */}}
{{- define "roundhouse.labels" -}}
app.kubernetes.io/name: roundhouse
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* Labels that choose the operator's pods; they never change. */}}
{{- define "roundhouse.selector" -}}
app.kubernetes.io/name: roundhouse
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "roundhouse.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "roundhouse.trainerImage" -}}
{{ .Values.trainer.image | default (printf "ghcr.io/roundhouse/roundhouse-trainer:%s" .Chart.AppVersion) }}
{{- end }}

{{- /* "true" or nothing. Nodes belong to no namespace, so rights that end at one do not reach them. */ -}}
{{- define "roundhouse.watchNodes" -}}
{{- if and .Values.nodes.watch (not .Values.watchNamespace) }}true{{ end }}
{{- end }}
