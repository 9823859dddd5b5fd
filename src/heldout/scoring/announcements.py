"""How an answer is announced: the words for it in many languages, and what follows them."""

from __future__ import annotations

import re

WORDS: tuple[str, ...] = (
    *("answer", "ans", "antwort", "réponse", "reponse", "respuesta", "resposta", "risposta"),
    *("antwoord", "svar", "odpowiedź", "odpověď", "cevap", "yanıt", "jawaban", "ответ"),
    *("відповідь", "απάντηση", "đáp án", "câu trả lời", "答案", "答え", "回答", "解答", "正解"),
    *("正答", "答", "정답", "답변", "답", "الإجابة", "الاجابة", "الجواب", "إجابة", "उत्तर"),
    *("উত্তর", "คำตอบ", "תשובה", "jibu"),
)
"""Words that announce an answer, in lower case."""
GUARDS = (
    *("ans", "antwo", "sposta", "j", "é", "ź", "ě", "ı", "в", "ά", "đ", "â", "答", "解", "답", "ج"),
    *("उ", "উ", "ค", "ת"),
)
"""Parts of the words, which are looked for first. A word and its beginning share their part."""

_IS = (
    r"is|are|was|(?:would|should|must|will|has to|have to|seems to|appears to|turns out to) be"
    r"|comes (?:out )?to(?: be)?|becomes|equals|ist|sind|lautet|lauten|est|sont|es|son|é|è|são|är"
    r"|er|adalah|ialah|jest|je|ni|là|είναι|(?<=odpowiedź )to"
)
_ADVERBS = (
    r"thus|therefore|then|clearly|simply|indeed|just|actually|(?:most )?(?:probably|likely)|now"
    r"|definitely|obviously|certainly|exactly|equal to|in fact"
)
_QUALIFIED = (
    r"choice|option|key|letter|value|here|correct[ae]|correta|corretta|exact[ae]|esatta|juste"
    r"|finale?|yang (?:benar|tepat)|sahihi|đúng|cuối cùng|الصحيحة|الصحيح|النهائية|הנכונה|הסופית"
)
SEPARATOR = re.compile(
    r"(?:s|es|en|et|nya|\(s\)|ที่ถูกต้อง)?"
    rf"(?:[ _](?:{_QUALIFIED})){{0,2}}"
    r"(?: ?\((?![^\W\d_]\))[^()\n]{0,40}\))?"  # (in km), but not (C)
    r"(?P<markup>[*_`~\"'”’\])]{0,8}[ \t]{0,8})"
    r"(?:(?P<colon>(?:(?<=\s)(?:in|for|to|of) [^\n.:?!]{1,40}(?=[:：]))?"
    r"(?:[:：=＝]|->|=>|→|⇒|】[:：]?)(?:</?[biu]>|</?strong>)?[*_]{0,4})"
    r"|(?P<dash>[-–—](?=\s))"
    r"|(?P<is>(?:,? (?:then|therefore|thus|in [^\n,.:]{1,30}), )?"
    r"(?:(?:to|for|of|in|that|from|among|I|we|you) "
    r"(?:[^\n.:?!\"“]{0,30}(?:\"[^\"\n]{1,200}\"|“[^”\n]{1,200}”)|[^\n.:?!\"“]{1,80}?) )?"
    rf"(?:{_IS})(?![\w'’])(?! not\b| still | yet )"
    rf"(?:,? (?:{_ADVERBS})\b,?)?(?: ?[:：])?[*_]{{0,4}}"
    r"(?: (?:la|le|el|a|o|η|die)(?= [(\[*]{0,4}[^\W\d_](?!\w)))?)"
    r"|(?P<particle>(?:应该是|應該是|应该选|应为|應為|是|为|為|选择|选|選|は|が|는|은|이|가|हैं|है|هي|هو"
    r"|คือ|হল|হলো|היא|הוא)[:：,，、]?[*_]{0,4})"
    r"|(?P<copula>(?<=\s)(?=[(\[*]{0,3}[^\W_]{1,3}[)\]*]{0,3} (?:है|हैं)(?!\w)))"
    r"|(?P<cell>\|(?=[^|\n]{0,2000}\w)(?![^\n]{0,2000}\n[ \t|:]{0,200}--))"
    r"|(?P<heading>(?=\n|\Z))"
    r"|(?P<bare>(?<=[\s*_])(?=[(\[*]{0,3}[^\W\d_][)\]*.]{0,4}[ \t]*(?:\n|\Z)"
    r"|[-+−$€£¥]{0,2}[0-9]\S{0,40}[ \t]*(?:\n|\Z))))",
    re.IGNORECASE,
)
PLAIN_IS = re.compile(r"(?P<markup> )(?P<is>is)(?= (?:[^\w:：]|\d|[A-Z](?:[).,;*\n]|\Z)))")
"""What the pattern above finds in `answer is (C)` and `answer is 42`, but much sooner."""
BEFORE = re.compile(  # what may stand before the word where it opens a line
    r"[\s#>*_`~\-•|\[(\"'“]{0,12}(?:(?:so|thus|therefore|hence)[, ]{1,3})?"
    r"(?:(?:the|my|our|la|die)\s)?(?:(?:final|correct|short|best|right)\s)?[\s*_`]{0,4}\Z",
    re.IGNORECASE,
)
# `easy to see`, but not `simple harmonic motion`; `in the text`, but not `in 1969`.
REMARK = re.compile(
    r"(?:(?:always|also|quite|very|so|really|pretty|too|fairly|most|more|already|completely"
    r"|entirely|both|therefore) )*"
    r"(?:(?:wrong|incorrect|correct|right|easy|hard|difficult|simple|clear|obvious|evident|unclear"
    r"|straightforward|ambiguous|helpful|useful|reasonable|plausible|consistent|valid|invalid"
    r"|accurate|complete|incomplete|close|different|similar|independent|dependent|ready|hidden)"
    r"(?=\W*\Z|[,;:]| (?:to|because|since|as|for|if|and|by|in|on|from|that|with|when|enough|once"
    r"|but)\b)"
    r"|(?:based|given|found|derived|obtained|calculated|computed|determined|supported|explained"
    r"|shown|stated|written|rounded|expressed|presented|provided|listed|located|included|needed"
    r"|required|expected|because|due|one of|up to)\b"
    r"|(?:in|on|from|within) (?:the|this|that|our|your|its|terms|simplest|dollars|line)\b"
    r"|an? (?:\w+ )?(?:number|letter|word|matter|integer|approximation|estimate|guess|result|bit"
    r"|combination|function)\b)",
    re.IGNORECASE,
)
_NOT_MEANT = frozenset(
    (
        *("wrong", "incorrect", "false", "previous", "earlier", "another", "possible", "other"),
        *("others'", "your", "no", "if", "whether", "unless", "suppose", "assuming", "assume"),
    )
)
_BETWEEN = frozenset(
    ("the", "my", "this", "that", "a", "an", "final", "correct", "right", "is", "was")
)


def is_not_meant(before: str) -> bool:
    """Whether it is another's answer, or only supposed or asked for, by what is before it."""
    for word in reversed(before.rpartition("\n")[2].split()):
        word = word.strip("*_")
        if word in _NOT_MEANT:
            return True
        if word not in _BETWEEN:
            return word in ("why", "what")  # is the answer …
    return False
