{{/* One name for everything: an installation is alone in its namespace, and the operator's Lease has this name too. */}}
{{- define "echorl.name" -}}
echorl-operator
{{- end }}

{{/* By these the operator's pods are known, to runs' network policies as well. */}}
{{- define "echorl.selector" -}}
app.kubernetes.io/name: echorl
app.kubernetes.io/component: operator
{{- end }}

{{/* The broker's pods. */}}
{{- define "echorl.brokerSelector" -}}
app.kubernetes.io/name: echorl
app.kubernetes.io/component: broker
{{- end }}

{{- define "echorl.brokerLabels" -}}
{{ merge (include "echorl.brokerSelector" . | fromYaml) (include "echorl.labels" . | fromYaml) | toYaml }}
{{- end }}

{{- define "echorl.daemonImage" -}}
{{ .Values.sandboxes.daemonImage | default (printf "echorl/sandbox-daemon:%s" .Chart.AppVersion) }}
{{- end }}

{{/* The broker's settings file: what sandbox pods are made by. */}}
{{- define "echorl.brokerSettings" -}}
{{- with .Values.sandboxes }}
daemonImage: {{ include "echorl.daemonImage" $ | quote }}
imagePullPolicy: {{ .imagePullPolicy }}
{{- with .imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 0 }}
{{- end }}
{{- with .runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
userNamespaces: {{ .userNamespaces }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 0 }}
{{- end }}
agentSandbox: {{ .agentSandbox }}
startDeadlineSeconds: {{ .startDeadlineSeconds }}
{{- end }}
{{- end }}

{{- define "echorl.labels" -}}
{{ include "echorl.selector" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_") }}
{{- end }}

{{/* As a JSON list: where runs are looked after; empty: everywhere. */}}
{{- define "echorl.namespaces" -}}
{{- if .Values.watch.clusterWide -}}
[]
{{- else -}}
{{ .Values.watch.namespaces | default (list .Release.Namespace) | uniq | sortAlpha | toJson }}
{{- end }}
{{- end }}

{{- define "echorl.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end }}
{{- end }}
{{- end }}

{{/* A selector of namespaces where runs are looked after. */}}
{{- define "echorl.namespaceSelector" -}}
{{- if .Values.watch.clusterWide -}}
{}
{{- else -}}
matchExpressions:
- key: kubernetes.io/metadata.name
  operator: In
  values: {{ include "echorl.namespaces" . }}
{{- end }}
{{- end }}

{{/* What every container of the operator's image may do: nothing. */}}
{{- define "echorl.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "echorl.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* Whether an object that was looked up is of this release: "true" or "". Arguments: root, object. */}}
{{- define "echorl.isOurs" -}}
{{- $notes := dig "metadata" "annotations" dict .object -}}
{{- if and (eq (get $notes "meta.helm.sh/release-name") .root.Release.Name) (eq (get $notes "meta.helm.sh/release-namespace") .root.Release.Namespace) -}}
true
{{- end }}
{{- end }}

{{/* Whose an object that was looked up is, in words. */}}
{{- define "echorl.whose" -}}
{{- $notes := dig "metadata" "annotations" dict . -}}
release {{ get $notes "meta.helm.sh/release-name" | default "unknown" }} in namespace {{ get $notes "meta.helm.sh/release-namespace" | default "unknown" }}
{{- end }}

{{/* Who may change what the operator has made: a CEL condition. */}}
{{- define "echorl.exempt" -}}
{{- $users := concat (list (printf "system:serviceaccount:%s:%s" .Release.Namespace (include "echorl.name" .)) "system:kube-controller-manager") .Values.admissionPolicies.exemptUsers -}}
{{- $groups := concat (list "system:serviceaccounts:kube-system") .Values.admissionPolicies.breakGlassGroups -}}
request.userInfo.username in {{ toJson $users }} ||
(has(request.userInfo.groups) && request.userInfo.groups.exists(group, group in {{ toJson $groups }}))
{{- end }}

{{/* The operator's settings file: the user's values, and what only the chart knows. */}}
{{- define "echorl.settings" -}}
{{- $own := dict "operatorNamespace" .Release.Namespace "operatorLabels" (include "echorl.selector" . | fromYaml) -}}
{{- if .Values.sandboxes.enabled -}}
{{- $url := printf "http://echorl-broker.%s.svc:8090" .Release.Namespace -}}
{{- $own = merge $own (dict "brokerUrl" $url "brokerLabels" (include "echorl.brokerSelector" . | fromYaml)) -}}
{{- $own = set $own "agentSandbox" .Values.sandboxes.agentSandbox -}}
{{- end -}}
{{- toYaml (merge $own (deepCopy .Values.settings)) }}
{{- end }}

{{/* Pods of other namespaces, as a peer of a NetworkPolicy. Argument: namespaceLabels and podLabels; empty: all. */}}
{{- define "echorl.peer" -}}
namespaceSelector: {{- if .namespaceLabels }}
  matchLabels: {{- toYaml .namespaceLabels | nindent 4 }}
{{- else }} {}
{{- end }}
{{- with .podLabels }}
podSelector:
  matchLabels: {{- toYaml . | nindent 4 }}
{{- end }}
{{- end }}

{{/* Who reads metrics, as namespaceLabels and podLabels. The default is that of the operator's settings. */}}
{{- define "echorl.monitoring" -}}
{{- if hasKey .Values.settings "monitoring" -}}
{{ toYaml .Values.settings.monitoring }}
{{- else -}}
namespaceLabels: {kubernetes.io/metadata.name: monitoring}
{{- end }}
{{- end }}

{{/* Puts a ValidatingAdmissionPolicy into force where runs are looked after. Arguments: root, name. */}}
{{- define "echorl.policyBinding" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ .name }}
  labels: {{- include "echorl.labels" .root | nindent 4 }}
spec:
  policyName: {{ .name }}
  validationActions: [Deny]
  matchResources:
    namespaceSelector: {{- include "echorl.namespaceSelector" .root | nindent 6 }}
{{- end }}

{{/* A value as the operator's messages show it, in CEL. Arguments: of, the value's expression; longest, in characters. */}}
{{- define "echorl.celFound" -}}
{{- $quoted := printf "strings.quote(%s)" .of -}}
{{- $text := printf "size(%s) > %d ? %s.substring(0, %d) + '...' : %s" $quoted (int .longest) $quoted (sub (int .longest) 3) $quoted -}}
{{- $mapping := printf "size(%s) == 0 ? 'an empty mapping' : 'a mapping'" .of -}}
{{- $list := printf "size(%s) == 0 ? 'an empty list' : 'a list of ' + string(size(%s))" .of .of -}}
(type({{ .of }}) == string ? ({{ $text }}) : type({{ .of }}) == map ? ({{ $mapping }}) : type({{ .of }}) == list ? ({{ $list }}) : {{ .of }} == null ? 'null' : string({{ .of }}))
{{- end }}
