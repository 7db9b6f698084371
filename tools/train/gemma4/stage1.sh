# unpack, tokenizer, token streams
set -e
mkdir -p $WORK/c; cp -n shards/*.xz $WORK/c/; cp -r train $WORK/
cd $WORK
if [ ! -f tok/tokenizer.json ]; then
  TOK_BYTES=70000000 python3 train/tok_train.py tok c/prose-000.jsonl.xz c/docs-000.jsonl.xz c/rust-000.jsonl.xz c/python-000.jsonl.xz c/chat-000.jsonl.xz c/stories-000.jsonl.xz
fi
python3 train/prep.py tok/tokenizer.json t 16 c/*.xz
ls -la t
