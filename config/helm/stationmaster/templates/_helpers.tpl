{{- define "stationmaster.image" -}}
{{ with .Values.registry }}{{ . }}/{{ end }}{{ required "image is missing: name the image that holds stationmaster" .Values.image }}
{{- end }}
