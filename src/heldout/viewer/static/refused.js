/** What a request is answered with instead of data: a sentence, and what to do. */
export class Refused extends Error {
  /**
   * @param {{error: string, hint?: string, kind?: string, at?: number, kinds?: string[],
   *   answer?: any}} body
   * @param {number} status
   */
  constructor(body, status) {
    super(body.error);
    this.hint = body.hint || "";
    this.at = body.at;
    this.kind = body.kind || "";
    this.kinds = body.kinds || [];
    this.answer = body.answer;
    this.status = status;
  }
}
