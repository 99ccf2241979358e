# Starts its worker in another session, as torchrun does. The worker ignores SIGTERM.
writer=writer-of-rank-$RANK
if [ -e "$writer" ] && kill -0 "$(cat "$writer")" 2> /dev/null; then
  echo "a writer of the former generation still runs"
fi
if [ "$WORLD_SIZE" = 1 ]; then
  echo "the last worker is alone"
  exit 0
fi
setsid sh -c 'trap "" TERM; echo $$ > '"$writer"'.new; mv '"$writer"'.new '"$writer"'; while :; do sleep 0.1; done' &
until [ -e "$writer" ]; do sleep 0.05; done
echo "rank $RANK of generation $ROUNDHOUSE_GENERATION trains"
sleep 1000
